"""The simulator: real planners, loops and store functions against a simulated world.

Virtual time, one seeded scheduler, crashes before, in the middle of and after every effect, answers
lost, repeated and late, frozen and replaced agents, hosts that reboot. After every step safety is
checked; when the faults end, everything has to settle within a bound.
"""
