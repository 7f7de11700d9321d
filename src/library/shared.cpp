// The shared library has no code of its own: it is the archive of this folder.
