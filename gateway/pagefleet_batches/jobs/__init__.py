"""What a batch is: its states, the lines of its input, and the errors of the API. Pure: values and functions of values.

Decides whether an input file can be sent, and which state follows another.
Never reads a clock, a file or a socket.
"""
