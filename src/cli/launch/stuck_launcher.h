#pragma once
// The daemons of mpirun after a host was cut off: they wait for each other without a time limit,
// where ranks have long ended.

namespace brrr::cli {

/// To be called by a rank that is about to end because a rank of another host is silent. If the
/// process that started this one belongs to Open MPI or MPICH and does not end by itself within
/// 1.5 s, a forked process kills it and removes its session files. Other launchers (Slurm,
/// torchrun) have time limits of their own and are left alone.
void end_stuck_launcher();

}  // namespace brrr::cli
