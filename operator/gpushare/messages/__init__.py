"""What is written for people: words in sentences, and log lines that are not repeated. Pure but for the log."""
