"""One presenter for each kind of entity: what REST answers and pages show of it, from the view of the log and what was measured. Pure: no
clock; the time comes with the question. REST answers have their keys in one order and lists by id: equal views, equal bytes."""
