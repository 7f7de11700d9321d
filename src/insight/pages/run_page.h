#pragma once
// The page of runs: curves over the steps, what was not as it should be, final figures and options.
// One page for a run that goes on (it asks its server for events), for a finished one, and for
// several beside each other.

#include <string>
#include <vector>

#include "insight/pages/run_record.h"

namespace brrr::insight {

/// `live`: the page of runs[0] while it goes on.
std::string run_page(const std::vector<RunRecord>& runs, bool live = false);

}  // namespace brrr::insight
