"""``backend="auto"``: which of the two languages a call gets, of what is built here."""
