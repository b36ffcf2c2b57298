"""What each GPU is to do, whether its daemon is ready, and the steps that lead there."""
