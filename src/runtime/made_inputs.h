#pragma once
// Inputs that the caller of a Runnable does not have: sizes for the axes that it leaves open, and
// made-up numbers in tensors of those sizes. What was chosen is told, so that it can be said.

#include <map>
#include <string>
#include <vector>

#include "runtime/runnable_session.h"

namespace brrr {

/// The name of an axis that the file leaves open: the file's, or "x.1" for axis 1 of the input x.
std::string axis_name(const Port& port, size_t axis);
/// What the name of an axis says: "past_sequence_length + 1" is a sum of a size and a number.
struct AxisSum {
  int64_t offset = 0;
  std::vector<std::string> names;
};
AxisSum axis_sum(const std::string& name);

/// The size of an axis that the file leaves open.
struct AxisSize {
  std::string name;  // the file's name for it, or "x.1": axis 1 of the input x
  int64_t size = 0;
  enum class From { option, tensor, guess } from = From::guess;
};

struct MadeInputs {
  PortValues values;              // those that were given, and the others
  std::vector<AxisSize> sizes;    // in the order of the inputs
  std::vector<std::string> made;  // the inputs whose numbers are made up
};

/// A tensor for each input that must be there. An open axis has the size that `sizes` says, or that
/// a given tensor has; else 1 for a batch, and what is usual where the name tells what the axis is.
/// Floats are random in [-1, 1) and the same each time, other numbers are 1. Throws UserError for
/// sizes that no axis has or that differ from a given tensor's, for axes that nothing is known of,
/// and for inputs that are no tensors of known rank.
MadeInputs make_inputs(const Runnable& runnable, PortValues given,
                       const std::map<std::string, int64_t>& sizes);

}  // namespace brrr
