"""One module for each command: its arguments, and what it asks the cluster. What is made of the answers: `views`."""
