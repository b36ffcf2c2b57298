"""`kubectl gpushare recommend`: reads the history of shares and prints what it supports; it changes nothing."""
