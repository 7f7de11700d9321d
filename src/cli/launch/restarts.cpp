#include "cli/launch/restarts.h"

#include <algorithm>

#include "base/human.h"
#include "base/tell.h"
#include "train/elastic/elastic.h"

namespace brrr::cli {

bool Restarts::again(const std::string& what, const std::function<Left()>& find_left) {
  const int64_t step = memory_.reached();
  const std::string lost =
      (step < 0 ? "before the first step, " : fmt::format("after step {}, ", step)) + what;
  in_vain_ = step > furthest_ ? 0 : in_vain_ + 1;
  furthest_ = std::max(furthest_, step);
  // A first start that is lost before its first step counts as one without a new step.
  if (step < 0 && restarts_ == 0) in_vain_ = 1;
  if (in_vain_ >= kMostInVain) {
    tell("brrr: {}; the ranks are not started again: {} starts in a row made no new step\n", lost,
         in_vain_);
    return false;
  }
  if (restarts_ >= most_) {
    tell("brrr: {}; the ranks are not started again: {} (--max-restarts)\n", lost,
         most_ == 0 ? "no restart is allowed" : "all " + counted(most_, "restart") + " were used");
    return false;
  }
  const Left left = find_left();
  const GoOn go_on = train::find_go_on(memory_);
  memory_.set_go_on(go_on, ++restarts_);
  tell("brrr: {}{}; starting {} again {}\n", lost, left.note, counted(left.ranks, "rank"),
       train::text_of(go_on));
  return true;
}

}  // namespace brrr::cli
