------------------------------ MODULE Failover ------------------------------
(* What lies between the processes: units that clients take from a limiter, in calls that they repeat until there is a  *)
(* reply, on a primary whose asynchronous replica is promoted. Each action names the code that it stands for. There is  *)
(* no time here: the limit is a quota, no reply expires, and holds do not end. The models of verify/src have these.     *)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Calls,      \* the calls, one for each client
    Limit,      \* the units of the limiter
    Want,       \* the units that each call asks for: it takes as many as fit
    Sends,      \* how often a call is sent at most
    Once,       \* whether calls carry ONCE
    Atomic,     \* whether a reply is replicated together with the state
    BackOnce    \* whether what a client gives back is given back once

VARIABLES
    primary,    \* the keys: units taken, the replies stored, units given back
    replica,    \* what the replica has heard of them
    promoted,   \* whether the replica was promoted
    forgotten,  \* the units that it had not heard of
    sent,       \* how often each call was sent
    arriving,   \* the calls that are on their way
    replies,    \* the replies that are on their way: a call and its units
    told,       \* the reply that each client has received, or None
    held,       \* the units that each client holds
    backs,      \* the units that are on their way back
    spent       \* the units that were spent

vars == <<primary, replica, promoted, forgotten, sent, arriving, replies, told, held, backs, spent>>

None == Limit + 1
Min(a, b) == IF a < b THEN a ELSE b
Less(a, b) == IF a > b THEN a - b ELSE 0

RECURSIVE Sum(_, _)
Sum(f, S) == IF S = {} THEN 0 ELSE LET c == CHOOSE c \in S : TRUE IN f[c] + Sum(f, S \ {c})

Empty == [taken |-> 0, stored |-> [c \in Calls |-> None], back |-> 0]

Init ==
    /\ primary = Empty /\ replica = Empty
    /\ promoted = FALSE /\ forgotten = 0
    /\ sent = [c \in Calls |-> 0] /\ arriving = {} /\ replies = {}
    /\ told = [c \in Calls |-> None] /\ held = [c \in Calls |-> 0]
    /\ backs = [c \in Calls |-> 0] /\ spent = 0

(* Holding::ask in core/src/holding.rs, and the repeats of both clients (clients/). What was sent may never arrive.    *)
Send(c) ==
    /\ told[c] = None /\ sent[c] < Sends
    /\ sent' = [sent EXCEPT ![c] = @ + 1]
    /\ arriving' = arriving \cup {<<c, sent[c]>>}
    /\ UNCHANGED <<primary, replica, promoted, forgotten, replies, told, held, backs, spent>>

(* Request::carry_out in src/calls/many.rs: the stored reply, or gcra::saturate of core/src/gcra.rs and a new reply,   *)
(* written in one transaction. A refusal stores nothing.                                                               *)
Execute(c, n) ==
    /\ <<c, n>> \in arriving
    /\ arriving' = arriving \ {<<c, n>>}
    /\ IF Once /\ primary.stored[c] # None
       THEN /\ replies' = replies \cup {<<c, primary.stored[c]>>}
            /\ UNCHANGED primary
       ELSE LET units == Min(Want, Less(Limit, primary.taken)) IN
            /\ replies' = replies \cup {<<c, units>>}
            /\ primary' = IF units = 0 THEN primary
                          ELSE [primary EXCEPT !.taken = @ + units, !.stored[c] = units]
    /\ UNCHANGED <<replica, promoted, forgotten, sent, told, held, backs, spent>>

(* Holding::answered. A client looks at the first reply only.                                                          *)
Receive(c, units) ==
    /\ <<c, units>> \in replies /\ told[c] = None
    /\ replies' = {reply \in replies : reply[1] # c}
    /\ told' = [told EXCEPT ![c] = units]
    /\ held' = [held EXCEPT ![c] = units]
    /\ UNCHANGED <<primary, replica, promoted, forgotten, sent, arriving, backs, spent>>

(* Holding::spend.                                                                                                     *)
Spend(c) ==
    /\ held[c] > 0
    /\ held' = [held EXCEPT ![c] = @ - 1]
    /\ spent' = spent + 1
    /\ UNCHANGED <<primary, replica, promoted, forgotten, sent, arriving, replies, told, backs>>

(* Holding::give_back.                                                                                                 *)
GiveBack(c) ==
    /\ held[c] > 0
    /\ backs' = [backs EXCEPT ![c] = held[c]]
    /\ held' = [held EXCEPT ![c] = 0]
    /\ UNCHANGED <<primary, replica, promoted, forgotten, sent, arriving, replies, told, spent>>

(* gcra::refund in core/src/gcra.rs: never more than is owed.                                                          *)
Refund(c) ==
    /\ backs[c] > 0
    /\ LET units == Min(backs[c], primary.taken) IN
       primary' = [primary EXCEPT !.taken = @ - units, !.back = @ + units]
    /\ backs' = IF BackOnce THEN [backs EXCEPT ![c] = 0] ELSE backs
    /\ UNCHANGED <<replica, promoted, forgotten, sent, arriving, replies, told, held, spent>>

(* The server's replication of ffi/src/effects.rs: the replica hears of all that was written until now.                *)
Replicate ==
    /\ replica # primary /\ ~promoted
    /\ replica' = primary
    /\ UNCHANGED <<primary, promoted, forgotten, sent, arriving, replies, told, held, backs, spent>>

(* The replica takes over; the old primary is gone (docs/guarantees.md, "Replication").                                *)
Promote ==
    /\ ~promoted
    /\ promoted' = TRUE
    /\ forgotten' = Less(primary.taken, replica.taken)
    /\ primary' = IF Atomic THEN replica ELSE [replica EXCEPT !.stored = primary.stored]
    /\ UNCHANGED <<replica, sent, arriving, replies, told, held, backs, spent>>

(* A client ends, and with it what it holds.                                                                           *)
Crash(c) ==
    /\ held[c] > 0
    /\ held' = [held EXCEPT ![c] = 0]
    /\ UNCHANGED <<primary, replica, promoted, forgotten, sent, arriving, replies, told, backs, spent>>

Next ==
    \/ \E c \in Calls : Send(c) \/ Spend(c) \/ GiveBack(c) \/ Refund(c) \/ Crash(c)
    \/ \E c \in Calls, n \in 0..Sends : Execute(c, n)
    \/ \E c \in Calls, units \in 0..Limit : Receive(c, units)
    \/ Replicate \/ Promote

Spec == Init /\ [][Next]_vars

(* Never more than the bound: what was spent and what is held is the limit at most, and what was forgotten.            *)
Bound == spent + Sum(held, Calls) <= Limit + forgotten

(* Charged exactly once: what is taken is what the stored replies say, without what came back.                         *)
Charged ==
    LET units == [c \in Calls |-> IF primary.stored[c] = None THEN 0 ELSE primary.stored[c]] IN
    primary.taken + primary.back = Sum(units, Calls)

(* A client that was told of units finds them in the key, unless a promotion has forgotten them.                       *)
Kept ==
    \A c \in Calls : told[c] \in 1..Limit => primary.stored[c] = told[c] \/ forgotten > 0 \/ promoted
=============================================================================
