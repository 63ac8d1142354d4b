"""Plots as SVG. Pure: figures in, text out."""
