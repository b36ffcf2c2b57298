"""The ways to share a GPU that are compared, behind one interface (`way`)."""
