"""``backend="auto"``: which of the two languages a call gets, of what is built here; and which
kernel of a language a short product gets."""
