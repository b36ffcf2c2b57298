"""What the agent tells the attach brokers, and what it learns from them."""
