#pragma once
// What a model is for: the head on its trunk, and the names of what the head tells apart. A plain
// value; config.json says it by the class in "architectures".

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace brrr::models {

enum class Head {
  next_token,     // logits of the token behind each; generates
  masked_token,   // logits of each token, for those that a mask token stands for
  embedding,      // a vector for the text
  classes,        // logits of the classes of the text
  values,         // numbers for the text (regression)
  token_classes,  // logits of the classes of each token
};

/// "classes of texts", for messages.
std::string description(Head head);

/// How the rows of a text become its vector.
enum class Pooling {
  cls,            // the row of the first token
  max,            // the largest of each column
  mean,           // the mean over the tokens
  mean_sqrt_len,  // the sum over the square root of the number of tokens
  weighted_mean,  // the mean in which row i counts i + 1 times
  last_token,     // the row of the last token
};

/// Every pooling by its name.
const std::vector<std::pair<std::string, Pooling>>& poolings();

struct Task {
  Head head = Head::next_token;
  /// Names of classes or of values, in the order of the logits; empty where the head has none.
  std::vector<std::string> labels = {};
  /// Head::classes: every class holds or not by itself, so scores are sigmoids and no softmax.
  bool several = false;
  /// Head::embedding: the vectors of these stand one behind the other.
  std::vector<Pooling> pooling = {Pooling::mean};
  bool normalize = false;  // to length 1
  /// Head::embedding: so many tokens at the beginning of each text are a prompt, which pooling
  /// leaves out. Every text has more.
  int64_t prompt_tokens = 0;

  bool operator==(const Task&) const = default;
};

}  // namespace brrr::models
