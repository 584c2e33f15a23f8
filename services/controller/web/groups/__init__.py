"""The Groups page: who is in them, who targets them."""
