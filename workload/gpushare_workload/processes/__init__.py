"""Worker processes of a scenario: started together, ended in good order, and never left behind."""
