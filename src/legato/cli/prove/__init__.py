"""`legato prove`: the user's own drill, on the user's own machine and database.

Gateways run on a scratch home or schema; clients talk to them over real sockets while nodes are killed, stopped and
restarted by a seeded plan. What was acknowledged the clients keep in a ledger of their own. In the end everything is
read back through the API and compared with it, by pure functions: `checks` knows nothing of processes or sockets.

    plan      what is asked and what goes wrong, from a seed alone
    fleet     the processes, and what is done to them
    node      one of them: a gateway with one tool more, whose every run leaves a line in a file
    wire      one request over one socket
    client    acts the plan out, and keeps the ledger
    faults    does what the plan says to the fleet, at random moments and at chosen points
    ledger    the records: what was asked, told and found
    survey    reads everything back
    checks    ledger against survey
    report    the table and the JSON
    drill     all of it, in order
"""
