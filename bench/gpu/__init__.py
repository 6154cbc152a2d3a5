"""Checks for GPUs: what compiles for them here, and what runs on one."""
