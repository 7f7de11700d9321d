#pragma once
// The process's one thread team. Whoever calls run() leads: it publishes pieces of work, takes
// pieces itself, and waits only for members inside the job, so a thread that the system has not
// scheduled costs nothing. A member that loses its processor in the middle of a piece does hold up
// the leader; where that happens often, because other programs need the processors, the team is
// half as large for a while. Results must not depend on who takes which piece.

#include <cstdint>

namespace brrr {

/// Returns the number of processors in the affinity mask of the process.
int usable_processors();

/// Returns the size of the team, including the leader: the last argument of set_thread_count(),
/// else the first number in OMP_NUM_THREADS if it is positive, else usable_processors().
int thread_count();
void set_thread_count(int threads);

namespace thread_team {

/// Runs one piece; `slot` numbers the threads at work, the leader is 0.
using RunPiece = void (*)(const void* work, int64_t piece, int slot);

/// Runs pieces [0, pieces), each once, on at most `members` threads, and returns when all are done.
/// Where there are as many pieces as members, each member prefers the piece of its slot's number.
/// Runs them on the calling thread while another thread leads the team. The first exception of a
/// piece is rethrown; pieces that nobody has begun are then left out.
void run(int64_t pieces, int members, RunPiece run_piece, const void* work);

/// Whether the calling thread is inside a piece. Such a thread does not lead.
bool is_at_work();
/// Returns the slot of the calling thread while it runs a piece, and 0 elsewhere.
int slot();

}  // namespace thread_team
}  // namespace brrr
