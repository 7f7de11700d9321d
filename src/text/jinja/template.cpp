#include "text/jinja/template.h"

#include "text/jinja/interpreter.h"
#include "text/jinja/parser.h"

namespace brrr::jinja {

struct Template::Parsed {
  Source source;
  Body body;
};

Template::Template(std::string_view text, std::string name) {
  Source source(text, std::move(name));
  Body body = parse(source);
  parsed_ = std::make_unique<const Parsed>(Parsed{std::move(source), std::move(body)});
}

Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

MarkedText Template::render_marked(const Variables& variables, const std::tm& now,
                                   const Limits& limits) const {
  return interpret(parsed_->source, parsed_->body, variables, now, limits);
}

}  // namespace brrr::jinja
