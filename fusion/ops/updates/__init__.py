"""The op that updates a variable and its slots, by a program."""
