"""A run folder in Python: its tables, tensors and plots, for notebooks and scripts.

loading   scenario, tables, reconstructions and recorded interceptions
plots     the report's plots, shown or written to files
drawing   the same drawn by matplotlib, which needs no browser
"""
