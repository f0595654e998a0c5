# settle: returns once no step of an earlier run is alive on the machine (the step lock was taken).
:
