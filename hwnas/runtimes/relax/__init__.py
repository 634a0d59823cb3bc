"""All of TVM: operators, schedules, compiling, linking, running here and on remote devices."""
