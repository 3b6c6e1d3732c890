"""The subcommands of `pagefleet-local` that are more than one call, and errors as sentences.

Decides what a command prints and its exit status.
Never starts a process by itself.
"""
