"""What Earshot is held to: a brute-force oracle, random cases, and the laws every index obeys."""
