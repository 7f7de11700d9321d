#pragma once
// The process's one thread team. Whoever calls run() leads: it publishes pieces of work, takes
// pieces itself, and waits only for members that hold one, so a thread that the system has not
// scheduled costs nothing. A member that loses its processor in the middle of a piece does hold up
// the leader; where that happens often, because other programs need the processors, the leader
// works alone for a while and then tries the team again. Results must not depend on who takes which
// piece.

#include <cstdint>

namespace brrr {

/// Processors that the system lets this process run on.
int usable_processors();

/// Threads of the team, the leader included: what set_thread_count() was given last, else
/// OMP_NUM_THREADS (its first number; ignored where it is not a positive one), else
/// usable_processors().
int thread_count();
void set_thread_count(int threads);

namespace thread_team {

/// Runs one piece; `slot` numbers the threads at work, the leader is 0.
using Piece = void (*)(const void* work, int64_t piece, int slot);

/// Runs pieces [0, pieces), each once, on at most `members` threads, and returns when all are done.
/// Where there are as many pieces as members, each member prefers the piece of its slot's number.
/// Runs them on the calling thread if another thread leads the team. The first exception of a piece
/// is rethrown; pieces that nobody has begun are then left out.
void run(int64_t pieces, int members, Piece piece, const void* work);

/// Whether the calling thread is inside a piece. Such a thread does not lead.
bool is_at_work();
/// The calling thread's slot; 0 outside a piece.
int slot();

}  // namespace thread_team
}  // namespace brrr
