"""Kernels: plain functions over pointers with run-time sizes, and their registrations as MAX custom ops."""
