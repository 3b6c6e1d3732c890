"""One builder per child kind: total functions from a revision's snapshot to a manifest."""
