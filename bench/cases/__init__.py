"""The cases, one family a file. Each file defines `cases()`; a new file is found by itself."""
