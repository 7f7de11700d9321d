#include "train/prepare_run.h"

#include "train/chat/chat_data.h"
#include "train/options/lora_options.h"
#include "train/parts.h"

namespace brrr::train {
namespace {

bool trains_adapter(const TrainOptions& o, const io::ModelFolder& model) {
  return o.lora_r > 0 || model.definition->adapted() != nullptr;
}

/// Says in which integers a quantised model is held below an adapter; "" for floats.
std::string quantized_base_note(const TrainOptions& o, const io::ModelFolder& model) {
  if (!model.has_integers()) return "";
  return fmt::format("the weights of {} are quantised ({}): {}", model.folder.string(),
                     model.quantization ? io::description(*model.quantization) : "blocks of GGUF",
                     o.load_in_4bit || o.load_in_8bit
                         ? "linear layers whose files hold another form are quantised again"
                         : "linear layers are held in these integers");
}

}  // namespace

io::OpenOptions open_for_pictures(const TaskPictures& pictures, const models::Model& known) {
  models::Task task{.head = models::Head::classes, .labels = pictures.labels};
  const bool is_same = known.task() == task;
  return {.task = std::move(task),
          .head = is_same ? io::TaskHead::of_files : io::TaskHead::fresh,
          .reads_tokenizer = false};
}

PreparedRun prepare_run(TrainOptions& options, const std::optional<ResumePoint>& resume,
                        const std::function<void(const std::string&)>& say) {
  PreparedRun run;
  fs::path folder;  // of the model that this run goes on from; it has the tokenizer
  if (resume)
    folder = resume->checkpoint;
  else if (options.init_from != "scratch")
    folder = io::find_model(options.init_from);
  if (const std::string line = reading_line(options); !line.empty()) say(line);
  models::ModelPtr known;
  if (!folder.empty() && (learns_labels(options) || !resume)) {
    known = io::read_definition(folder, resume ? moved_base(options, folder) : fs::path());
  }
  std::optional<TaskFiles> files;
  std::optional<TaskPictures> pictures;
  io::OpenOptions open;
  if (learns_pictures(options)) {
    pictures = load_pictures(options, known, folder);
    if (known) open = open_for_pictures(*pictures, *known);
  } else if (learns_labels(options)) {
    files = read_task_files(options, known.get(), resume.has_value());
    if (known) open = open_for(*files, *known);
  } else if (known) {
    open = open_for_text(*known);
  }
  if (!resume && !folder.empty()) {
    run.start_from = io::open_model(folder, open);
    folder = run.start_from->folder;  // the base's, where an adapter brings no tokenizer
    if (pictures) {
      models::ModelPtr& definition = run.start_from->definition;
      if (definition->sizes().picture->height != pictures->image_size)
        definition = definition->with_image_size(pictures->image_size);
    }
    adopt_architecture(options, *run.start_from);
    say("starting from " + description(*run.start_from));
    for (const std::string& note :
         {trains_adapter(options, *run.start_from) ? quantized_base_note(options, *run.start_from)
                                                   : quantization_note(*run.start_from),
          preset_note(options, *run.start_from),
          other_task_note(*known, *run.start_from->definition)})
      if (!note.empty()) say("note: " + note);
  }
  if (!folder.empty()) {
    run.generation_config = io::generation_config_text(folder);
    run.chat_template = kept_chat_template(options, folder);
  }
  run.dataset = pictures ? picture_dataset(*std::move(pictures))
                : files  ? task_dataset(options, *std::move(files), folder.string())
                         : load_dataset(options, folder.string());
  shorten_context(options, run.dataset);
  if (options.sample_prompt.empty()) options.sample_prompt = run.dataset.sample_prompt;
  for (const std::string& note : run.dataset.notes) say("note: " + note);
  say("data: " + run.dataset.description);
  if (options.max_steps == 0) {
    const io::LoaderOptions l = loader_options(options, run.dataset.vocabulary());
    const double per_epoch =
        run.dataset.batches_per_epoch(l) / static_cast<double>(options.gradient_accumulation_steps);
    options.max_steps = std::max<int64_t>(1, std::llround(options.num_train_epochs * per_epoch));
  }
  return run;
}

models::ModelPtr new_model(const TrainOptions& options, const Dataset& dataset) {
  const models::ModelPtr model = model_of(options, dataset.vocabulary(), dataset.pad_token());
  if (dataset.task) return model->with_task(dataset.task->task);
  if (!dataset.pictures) return model;
  const auto classes = std::to_string(std::ssize(dataset.pictures->labels));
  if (const auto given = options.model_settings.find("num-labels");
      options.was_given("num-labels") && given->second != classes)
    usage_error("--num-labels {}: the pictures have {} classes; leave it out", given->second,
                classes);
  return model->with_task({.head = models::Head::classes, .labels = dataset.pictures->labels});
}

models::ModelPtr with_loss_of(const TrainOptions& options, models::ModelPtr model) {
  if (!model->sees_pictures()) return model;
  return model->with_picture_loss(
      {.label_smoothing = options.label_smoothing, .mixes = mixes_pictures(options)});
}

}  // namespace brrr::train
