# Reads a Homebrew formula in Homebrew's place, and prints what it says as JSON.
#
#     ruby formula.rb FORMULA
#
# It knows the words that our formula uses: any other is an error.
require "json"

SAID = { "parts" => {} }

# A folder of Homebrew's, which only gets a name.
class Folder < String
  def /(name)
    Folder.new("#{self}/#{name}")
  end

  def install(*names)
    SAID["installed"] = names
  end
end

module Folders
  %w[bin opt_bin var].each { |name| define_method(name) { Folder.new(name) } }
end

class Service
  include Folders

  %w[run keep_alive log_path error_log_path].each do |name|
    define_method(name) { |value| (SAID["service"] ||= {})[name] = value }
  end
end

class Formula
  include Folders

  class << self
    %w[desc homepage version license].each do |name|
      define_method(name) { |value| SAID[name] = value }
    end

    def on_macos(&block) = within("macos", &block)
    def on_linux(&block) = within("linux", &block)
    def on_arm(&block) = within("arm", &block)
    def on_intel(&block) = within("intel", &block)

    %w[url sha256].each do |name|
      define_method(name) { |value| (SAID["parts"][@within.join(".")] ||= {})[name] = value }
    end

    def service(&block) = Service.new.instance_eval(&block)
    def test(&block) = new.instance_eval(&block)

    def within(name)
      (@within ||= []).push(name)
      yield
      @within.pop
    end
  end

  def generate_completions_from_executable(*arguments)
    SAID["completions"] = arguments
  end

  def shell_output(command)
    SAID["test"] = command
    "Appends an element to the back of a collection."
  end

  def assert_match(wanted, text)
    SAID["match"] = wanted if text.include?(wanted)
  end
end

load ARGV[0]
Moeflux.new.install
puts JSON.generate(SAID)
