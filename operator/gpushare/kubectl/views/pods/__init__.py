"""What the commands say of one pod: what it asks for and has, and why it does not run. Pure."""
