"""What each command says, from objects as the API server has them. Pure."""
