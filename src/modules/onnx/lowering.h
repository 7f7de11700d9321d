#pragma once
// Lowering: the graph of one binding from the nodes of an ONNX file. Nodes are taken in their
// order; each calls the function of its operator (operators/), which appends to the graph. What
// depends on no data is known: sizes, and whatever is computed from them, are evaluated by the
// reference loops as soon as an operator asks for their values.
//
// An operator that asks for a value which depends on data ends the graph (Cut): the module then
// hands on what is alive, and the next graph begins with that value known.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/onnx/onnx_file.h"
#include "ir/ref_tensor.h"
#include "modules/onnx/item.h"
#include "runtime/runnable.h"

namespace brrr::onnx {

/// A graph under construction, and what is known of its values.
class Build {
 public:
  Graph graph;

  /// How much of the data a value depends on.
  enum Dependence : uint8_t { nothing = 0, small_inputs = 1, data = 2 };
  Dependence dependence(ValueId v);
  /// An input whose value a binding may hold.
  void can_be_bound(NodeId input) { bindable_.insert(input); }
  /// The names of the small inputs that a value depends on.
  std::vector<std::string> small_inputs_of(ValueId v) const;

  /// The value of what depends on nothing; floats are rounded to their dtype. `weight` gives the
  /// bytes of a parameter.
  using Weight = std::function<std::span<const std::byte>(std::string_view)>;
  const RefTensor& evaluate(ValueId v, const Weight& weight);
  /// The most bytes that known values may take; 0: any number. Throws UserError (exit 3) from
  /// evaluate() beyond that.
  void set_limit(int64_t bytes) { most_bytes_ = bytes; }

 private:
  void will_know(const std::vector<Type>& types);

  std::vector<uint8_t> dependences_;  // of the nodes so far
  std::set<NodeId> bindable_;
  std::unordered_map<NodeId, std::vector<RefTensor>> known_;
  int64_t known_bytes_ = 0, most_bytes_ = 0;
};

/// The names of one graph: that of the file, of a function, or of a branch or a loop that is
/// lowered in place. Names are told apart in the whole file by a prefix.
struct Names {
  Names* outer = nullptr;  // whose names are visible, too
  std::string prefix;
  const Opsets* opsets = nullptr;
  Build* build = nullptr;
  std::unordered_map<std::string_view, Item> items;
  std::unordered_map<std::string_view, const TensorProto*> initializers;
  /// Items that the outside gave, and gives again after a Cut: what they are called there.
  std::unordered_map<std::string_view, std::string> passed;
  std::set<std::string_view> kept;  // items that are handed on though no node reads them
  /// Values of attributes that the nodes of a function refer to.
  const NodeProto* call = nullptr;
  const FunctionProto* function = nullptr;
  Names* caller = nullptr;

  std::string qualified(std::string_view name) const { return prefix + std::string(name); }
  /// The qualified name under which an item is handed on.
  std::string source(std::string_view name) const {
    const auto at = passed.find(name);
    return at == passed.end() ? qualified(name) : at->second;
  }
};

/// A value that must be known depends on data.
struct Cut {
  std::string name;                      // of the value
  std::map<std::string, Item> handed;    // what is alive, by qualified names
  std::map<std::string, Item> constant;  // of what is alive, the small values that are known
};
/// A value that must be known depends on small inputs alone.
struct Bind {
  std::vector<std::string> inputs;
};
/// A value that must be known depends on what a region is given.
struct RegionCut {};

class Lowering {
 public:
  using Weight = Build::Weight;
  /// Told of each tensor of the file that becomes a parameter, and its name.
  using OnWeight = std::function<void(const std::string& name, const TensorProto& tensor)>;
  Lowering(const File& file, const GraphRequest& request, Weight weight, OnWeight on_weight);
  LoweredGraph run();

  // -- for operators
  // --------------------------------------------------------------------------------
  Build& build() { return *build_; }
  const File& file() const { return file_; }
  /// Lowers the nodes of a graph in the names of `names`: afterwards it holds at least `wanted`.
  void lower_nodes(const std::vector<NodeProto>& nodes, Names& names,
                   const std::vector<std::string_view>& wanted);
  /// A branch, or one iteration of a loop, in place: names of the outside are visible. Gives the
  /// outputs of the graph. `part` tells it apart from others of the same node.
  struct Passed {
    Item item;
    std::string source;  // its qualified name outside
  };
  std::vector<Item> lower_in_place(const GraphProto& graph, Names& outside, const std::string& part,
                                   const std::vector<Passed>& inputs);
  /// A graph as a region: closed, what it reads of the outside are further inputs. Nothing where
  /// that cannot be: a size depends on what it is given, or a value is no tensor.
  struct RegionParts {
    std::shared_ptr<Build> build;  // its graph has inputs a0, a1, ... and no outputs yet
    std::vector<Value> outputs;    // in its graph
    std::vector<Value> captured;   // in the graph outside, the inputs behind those of `types`
  };
  /// `inputs` makes the inputs of the graph of those of the region, which have `types`; without it
  /// they are the same. The values of `captured` are captured first, in their order.
  using RegionInputs = std::function<std::vector<Item>(const std::vector<Value>& inputs)>;
  std::optional<RegionParts> lower_region(const GraphProto& graph, Names& outside,
                                          const std::string& part, const std::vector<Type>& types,
                                          const RegionInputs& inputs = {},
                                          const std::vector<Value>& captured = {});
  /// Gives a region further captured values, so that two regions take the same.
  static void capture_also(RegionParts& parts, const std::vector<Value>& captured);

  /// The item of a name; null where nothing gives it (yet).
  const Item* find(Names& names, std::string_view name);
  /// The value of a tensor, which must be known: throws Cut or Bind where it is not.
  const RefTensor& known(const Value& value, const std::string& qualified_name);
  /// The same where it is known; null where it depends on data.
  const RefTensor* known_or_null(const Value& value);
  /// The same of a region's value.
  const RefTensor* known_or_null(Build& build, const Value& value) const;
  /// A constant of the graph: `full` or `literal`.
  Value constant(const RefTensor& tensor);
  /// A constant tensor of the file.
  Item constant(const TensorProto& tensor, const std::string& name);
  /// A value of a graph around the innermost region, as that region reads it.
  Value captured(Value value);
  /// Keeps an item under a name across a Cut, as loops keep how far they are.
  void keep(Names& names, std::string_view name, Item item);
  /// Takes it back.
  Item take_kept(Names& names, std::string_view name);
  /// Text that lives as long as the lowering, for names that no file has.
  std::string_view text(std::string s);

 private:
  friend class Call;
  void lower_node(const NodeProto& node, Names& names);
  void keep_range(const NodeProto& node, Names& names);
  void call_function(const FunctionProto& function, const NodeProto& node, Names& names);
  const FunctionProto* find_function(const NodeProto& node) const;
  void hand_on(Cut& cut, const std::vector<NodeProto>& nodes, size_t from, Names& names,
               const std::vector<std::string_view>& wanted, const std::vector<bool>& needed);
  bool is_small_constant(const Item& item);
  std::vector<bool> needed_nodes(const std::vector<NodeProto>& nodes, const Names& names,
                                 const std::vector<std::string_view>& wanted);
  const std::vector<std::string_view>& reads_of(const NodeProto& node);
  bool is_given(const std::string& qualified) const;
  Item given(const std::string& qualified);
  Item here(const Item& item);
  Names inner_names(Names& outside, const std::string& part) const;
  void give_graph(const GraphProto& graph, Names& names) const;
  std::vector<Item> outputs_of(const GraphProto& graph, Names& names);
  void output(LoweredGraph& lowered, const std::string& name, const Item& item);

  const File& file_;
  const GraphRequest& request_;
  Weight weight_;
  OnWeight on_weight_;
  Build* build_ = nullptr;
  Build main_;
  struct Capture;
  std::vector<Capture*> captures_;        // of the regions that are being built, outermost first
  std::map<std::string, Value> weights_;  // of the outermost graph
  std::map<std::string_view, ElementType> declared_;  // of the inputs of the file
  std::unordered_map<const NodeProto*, std::vector<std::string_view>> reads_;
  std::vector<std::unique_ptr<std::string>> texts_;
  std::vector<const FunctionProto*> calls_;  // functions that are being inlined
  size_t lowered_ = 0;                       // nodes so far
};

}  // namespace brrr::onnx
