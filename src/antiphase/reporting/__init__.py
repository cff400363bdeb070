"""Charts as data, figures drawn by Matplotlib, and HTML pages.

Nothing in the rest of the library depends on this package, except the demo and the command line.
"""
