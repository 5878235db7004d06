"""Inverted lists by rarest token; regions are checked afterwards."""
