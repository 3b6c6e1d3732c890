"""Programs that are not ours: from the user's PATH, Debian's packages or Debian's sources, stored in the cache.

Decides where each program comes from.
Never installs into the system what would start a service.
"""
