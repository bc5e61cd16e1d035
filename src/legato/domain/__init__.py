"""What things are: values and pure functions, decided with pencil and paper.

No I/O, no async, no clock (but ids are drawn here, and begin with chance and a second). The one library allowed here is
msgspec, whose structs are the values.
"""
