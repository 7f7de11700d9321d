// brrr classify: the classes of each line of text, its ratings, or the classes of its words.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/clock.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/join_ranks.h"
#include "cli/model_option.h"
#include "cli/pictures/picture_verbs.h"
#include "cli/texts/class_scores.h"
#include "cli/texts/encoder_texts.h"
#include "formats/json_file.h"

namespace brrr::cli {

using infer::check_finite;
using infer::encoder_of;
using infer::longest_text;
using infer::rows_of;
namespace {

using OrderedJson = nlohmann::ordered_json;  // scores stand in the order of the labels
using models::Head;

size_t best_of(const std::vector<double>& p) {
  return static_cast<size_t>(std::max_element(p.begin(), p.end()) - p.begin());
}

OrderedJson scores_json(const std::vector<double>& p, const models::Task& task) {
  OrderedJson scores = OrderedJson::object();
  for (size_t i = 0; i < p.size(); ++i) scores[task.labels[i]] = p[i];
  return scores;
}

/// The printed result of a text: "positive 0.98", all classes sorted by score, or values.
std::string text_line(const std::vector<double>& p, const models::Task& task, bool all) {
  if (task.head == Head::values) {
    std::string line;
    for (const double x : p) line += fmt::format("{}{:.6g}", line.empty() ? "" : "\t", x);
    return line;
  }
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  std::string line;
  for (const size_t i : order) {
    // With several classes per text, those above 0.5 are printed; otherwise the most likely one.
    const bool is_said = all || (task.several ? p[i] >= 0.5 : i == order[0]);
    if (is_said)
      line += fmt::format("{}{}\t{:.4f}", line.empty() ? "" : "\t", task.labels[i], p[i]);
  }
  return line;
}

OrderedJson text_json(const std::vector<double>& p, const models::Task& task) {
  OrderedJson result;
  if (task.several) {
    OrderedJson labels = OrderedJson::array();
    for (size_t i = 0; i < p.size(); ++i)
      if (p[i] >= 0.5) labels.push_back(task.labels[i]);
    result["label"] = labels;
  } else if (task.head == Head::values) {
    result["label"] = p.size() == 1 ? OrderedJson(p[0]) : OrderedJson(p);
  } else {
    result["label"] = task.labels[best_of(p)];
  }
  result["scores"] = scores_json(p, task);
  return result;
}

/// Splits a text into words at spaces and tabs, as training does.
std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  constexpr std::string_view kBlank = " \t";
  for (size_t at = text.find_first_not_of(kBlank); at != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(kBlank, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kBlank, end);
  }
  return words;
}

class Classifier {
 public:
  Classifier(const infer::ClassifyOptions& options, io::ModelFolder model,
             Communicator* communicator)
      : options_(options),
        communicator_(communicator),
        model_(std::move(model)),
        task_(model_.definition->task()),
        encoder_(encoder_of(model_, options, communicator)),
        texts_(options, *model_.tokenizer,
               longest_text(options, model_.definition->sizes().context),
               infer::TextForm::with_special_tokens, communicator) {}

  int run() {
    if (options_.pairs && task_.head == Head::token_classes)
      usage_error("--pairs: {} classifies words, so a line holds one text; leave --pairs out",
                  model_.folder.string());
    check_same_models(communicator_, model_, options_.device);
    const Stopwatch watch;
    while (texts_.next()) {
      if (task_.head == Head::token_classes)
        classify_words();
      else
        classify_texts();
      flush_output();
    }
    const double seconds = watch.seconds() - texts_.seconds_waited();
    if (options_.json) {
      OrderedJson rest{{"texts", texts_.count()},
                       {"seconds", seconds},
                       {"texts_per_second", rate_of(texts_.count(), seconds)},
                       {"process_peak_bytes", peak_resident_bytes()},
                       {"model", model_.folder.string()}};
      list_.finish(io::json_line(rest));
    }
    texts_.say_notes();
    say_rate(texts_.count(), seconds, infer::title_of(model_));
    return 0;
  }

 private:
  void print_json(const OrderedJson& result) { list_.print(io::json_line(result)); }

  void classify_texts() {
    std::vector<io::ModelInput> inputs;
    for (size_t i = 0; i < texts_.lines().size(); ++i) {
      std::string_view first = texts_.lines()[i];
      std::optional<std::string_view> second;
      if (options_.pairs) {
        const size_t tab = first.find('\t');
        if (tab == std::string_view::npos)
          user_error("{}: --pairs expects two texts separated by a tab; found no tab",
                     texts_.where(i));
        second = first.substr(tab + 1);
        if (second->find('\t') != std::string_view::npos)
          user_error("{}: --pairs expects two texts separated by a tab; found more than one tab",
                     texts_.where(i));
        first = first.substr(0, tab);
      }
      inputs.push_back(texts_.encode(i, first, second));
    }
    std::vector<std::vector<double>> results(inputs.size());
    encoder_.run(rows_of(inputs), [&](size_t row, std::span<const float> logits) {
      check_finite(logits, texts_.where(row));
      results[row] = probabilities_of(logits, task_);
    });
    for (const std::vector<double>& p : results)
      if (options_.json)
        print_json(text_json(p, task_));
      else
        fmt::print("{}\n", text_line(p, task_, options_.all_scores));
  }

  // A word has the class of its first token.
  void classify_words() {
    std::vector<std::vector<std::string_view>> words;
    std::vector<io::ModelInput> inputs;
    for (size_t i = 0; i < texts_.lines().size(); ++i) {
      words.push_back(words_of(texts_.lines()[i]));
      inputs.push_back(texts_.encode_words(i, words.back()));
    }
    std::vector<std::vector<std::vector<double>>> results(inputs.size());
    encoder_.run(rows_of(inputs), [&](size_t row, std::span<const float> logits) {
      check_finite(logits, texts_.where(row));
      const size_t classes = task_.labels.size();
      results[row].resize(words[row].size());
      const std::vector<int32_t>& word_of = inputs[row].words;
      for (size_t t = 0; t < word_of.size(); ++t)
        if (const int32_t w = word_of[t]; w >= 0 && results[row][static_cast<size_t>(w)].empty())
          results[row][static_cast<size_t>(w)] =
              probabilities_of(logits.subspan(t * classes, classes), task_);
    });
    for (size_t i = 0; i < inputs.size(); ++i) print_words(words[i], results[i]);
  }

  void print_words(const std::vector<std::string_view>& words,
                   const std::vector<std::vector<double>>& results) {
    OrderedJson list = OrderedJson::array();
    for (size_t w = 0; w < words.size(); ++w) {
      const std::vector<double>& p = results[w];
      // A word without a token: it was cut off, or its characters are none to the tokenizer.
      const std::string label = p.empty() ? "-" : task_.labels[best_of(p)];
      if (!options_.json) {
        fmt::print("{}\t{}\n", words[w],
                   p.empty() ? label : text_line(p, task_, options_.all_scores));
        continue;
      }
      OrderedJson result{{"word", std::string(words[w])}};
      result["label"] = p.empty() ? OrderedJson() : OrderedJson(label);
      result["scores"] = p.empty() ? OrderedJson() : scores_json(p, task_);
      list.push_back(std::move(result));
    }
    if (options_.json)
      print_json(list);
    else
      fmt::print("\n");
  }

  const infer::ClassifyOptions& options_;
  Communicator* communicator_;
  io::ModelFolder model_;
  models::Task task_;
  infer::Encoder encoder_;
  EncoderTexts texts_;
  ResultList list_{"results"};
};

std::unique_ptr<Classifier> open_classifier(const infer::ClassifyOptions& options,
                                            Communicator* communicator) {
  io::ModelFolder model =
      open_named_model(options.model, {.adapters = io::parse_adapters(options.adapter)});
  const Head head = model.definition->task().head;
  if (head != Head::classes && head != Head::values && head != Head::token_classes)
    user_error(
        "{} has no classes: its model is for {}; fine-tune it with `brrr train --task classify "
        "--data FILE.tsv --init-from {}`",
        model.folder.string(), models::description(head), model.folder.string());
  return std::make_unique<Classifier>(options, std::move(model), communicator);
}

}  // namespace

int classify_main(const infer::ClassifyOptions& options) {
  if (!options.images.empty()) return classify_pictures(options);
  return share_work(
      options.threads,
      [&](Communicator* communicator) { return open_classifier(options, communicator); },
      [](Classifier& classifier) { return classifier.run(); });
}

}  // namespace brrr::cli
