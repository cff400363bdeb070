"""Charts as data (`charts`), drawn by Matplotlib (`figures`) and in one HTML file (`page`).

Nothing here is imported by the rest of the library.
"""
