"""Decides for each GPU of the node: take, serve, drain, release; ready or not; slots offered. And carries it out."""
