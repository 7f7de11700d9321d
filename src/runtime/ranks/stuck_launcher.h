#pragma once
// Ends the daemon of mpirun on a host that was cut off. Such daemons wait for each other without a
// time limit, even if all ranks have ended.

namespace brrr::ranks {

/// To be called by a rank that is about to end because another host does not answer. If the process
/// that started this one belongs to Open MPI or MPICH and does not end by itself within 1.5 s, a
/// forked process kills it and removes its session files. Other launchers (Slurm, torchrun) have
/// time limits of their own and are left alone.
void end_stuck_launcher();

}  // namespace brrr::ranks
