"""Reference pages made from what the pieces themselves declare."""
