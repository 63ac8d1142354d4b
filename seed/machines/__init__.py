"""The kinds of Machines that are counted, and what each costs."""
