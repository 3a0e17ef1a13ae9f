"""Fuzzing of all that reads foreign bytes: images, tables, archives, settings, weights and run
folders.

python -m fuzz --seconds 60 --out fuzz.json
"""
