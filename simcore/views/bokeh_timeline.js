// What the timeline page does: lays out lanes, gives Bokeh the bars that are in view, and answers clicks and searches.
//
// Bokeh draws, zooms, pans and hovers. Of the bars, which lie here as columns, it is given those in view; bars of one
// kind next to each other and narrower than a pixel are one bar to it. `y` is pixels from the top of the frame.

const HOW = ["nothing", "dependency", "queue", "unit", "buffer"]
const TASK = 0, WAIT = 1, BUFFER = 2
const NOT_DRAWN = -2
const HEADER = 28, BAND = 20, GAP = 6
const NARROW = 1, LEAST = 0.7, OUTLINED = 4, HATCHED = 5
const MOST_TEXTS = 1500, MOST_OUTLINES = 6000, MOST_ARROWS = 200, MOST_STEPS = 200
const MOST_POINTS = 1200
const DIMMED = 0.12, LIGHTEST = 0.4
const CHARACTER = 6.1
const SETTLED_MS = 90
const BAND_STEPS = [5, 10, 20, 50, 100, 200, 500, 1000]

function scaled(value, steps) {
  for (const [factor, unit] of steps)
    if (Math.abs(Number(value.toPrecision(4))) >= factor) return `${Number((value / factor).toPrecision(4))} ${unit}`
  const [factor, unit] = steps[steps.length - 1]
  return `${Number((value / factor).toPrecision(4))} ${unit}`
}
const seconds = (ps) => ps === 0 ? "0 s" : scaled(ps / 1e12, [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"], [1e-12, "ps"]])
// A point in time needs more digits than a length of time.
const instant = (value, unit) => value === 0 ? "0 s" : `${Number(value.toPrecision(8))} ${unit}`
const amount = (count, unit) => scaled(count, [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]].map(([f, p]) => [f, p + unit]))

// What to write in bands with these labels and edges in pixels: as `band_labels` in gantt_lanes.py. Numbered bands are
// all written alike: whole, or as numbers; where not every number fits, every fifth, or every tenth, and so on.
function band_labels(labels, edges) {
  const room = (text) => text.length * CHARACTER + 6
  const fits = (text, at) => room(text) <= edges[at][1] - edges[at][0]
  const numbers = labels.map((label) => /^(?:layer |m)(\d+)$/.exec(label)?.[1] ?? "")
  if (!numbers.every((number) => number)) return labels.map((label, at) => fits(label, at) ? label : "")
  const inner = labels.map((_, at) => at).filter((at) => labels.length <= 2 || (at > 0 && at < labels.length - 1))
  for (const texts of [labels, numbers])
    if (inner.every((at) => fits(texts[at], at))) return texts.map((text, at) => fits(text, at) ? text : "")
  for (const step of BAND_STEPS) {
    const texts = numbers.map((number) => Number(number) % step === 0 ? number : "")
    const shown = texts.map((_, at) => at).filter((at) => texts[at])
    const middle = (at) => (edges[at][0] + edges[at][1]) / 2
    const apart = (one, other) => middle(one) + room(texts[one]) / 2 <= middle(other) - room(texts[other]) / 2
    if (shown.every((at, place) => place === 0 || apart(shown[place - 1], at))) return texts
  }
  return labels.map(() => "")
}

// Bars of one style for Bokeh, in columns that grow and are used again for the next frame.
class Part {
  constructor() {
    this.count = 0
    this.room = 0
    this.store = []
  }

  add(left, right, top, bottom, alpha, bar) {
    if (this.count === this.room) this.grow()
    const [lefts, rights, tops, bottoms, alphas, bars] = this.store, at = this.count++
    lefts[at] = left, rights[at] = right, tops[at] = top, bottoms[at] = bottom, alphas[at] = alpha, bars[at] = bar
  }

  grow() {
    this.room = Math.max(256, 2 * this.room)
    this.store = [Float64Array, Float64Array, Float64Array, Float64Array, Float64Array, Int32Array].map((Kind, number) => {
      const more = new Kind(this.room)
      if (this.store[number]) more.set(this.store[number])
      return more
    })
  }

  columns() {
    if (!this.room) this.grow()
    const [left, right, top, bottom, alpha, bar] = this.store.map((column) => column.slice(0, this.count))
    return {left, right, top, bottom, alpha, bar, card: bar}
  }
}

class Timeline {
  constructor(models) {
    Object.assign(this, models)
    this.data = models.small
    this.bars = models.bars_source.data
    this.tasks = models.tasks_source.data
    this.hidden = new Set()
    this.parts = this.sources.map(() => new Part())
    this.shown = []       // what Bokeh was given: columns for each style, without its hatch and with it
    this.joined = new Map()  // bar -> how many are drawn as one with it
    this.chosen = -1      // the bar that is selected
    this.chosen_row = -1  // and its task
    this.chain = []       // rows that it waited for, one after the other
    this.past = []
    this.matching = null  // a byte for each bar while something is searched for
    this.matches = []
    this.match = -1
    const count = this.bars.left.length
    this.block_of = new Uint16Array(count)
    this.bar_of = new Int32Array(this.tasks.task.length).fill(-1)
    this.data.blocks.forEach(([, , from, to], number) => this.block_of.fill(number, from, to))
    for (let bar = 0; bar < count; bar++)
      if (this.bars.kind[bar] === TASK && this.bars.row[bar] >= 0) this.bar_of[this.bars.row[bar]] = bar
    this.panel = document.getElementById("chain")
    this.panel.querySelector(".close").onclick = () => this.clear()
    this.panel.querySelector(".walk").onclick = () => this.walk()
    this.panel.querySelector(".back").onclick = () => this.back()
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.clear())
    window.addEventListener("resize", () => setTimeout(() => this.moved(), SETTLED_MS))
    this.layout()
  }

  // -- lanes ---------------------------------------------------------------------------------------------------

  layout() {
    const {groups, lanes, bands} = this.data
    const bands_shown = !this.hidden.has("layers")
    let y = 0
    groups.forEach((group, number) => {
      group.top = y
      y += HEADER
      group.band_top = null
      if (!group.folded && group.bands && bands_shown) {
        group.band_top = y
        y += BAND
      }
      for (const lane of lanes) {
        if (lane.group !== number) continue
        const open = !group.folded && !this.hidden.has(lane.kind)
        lane.top = open ? y : null
        if (open) y += lane.height
      }
      group.bottom = y
      if (!group.folded) y += GAP
      this.headers[number].setv({y: group.top + HEADER / 2, text: `${group.folded ? "▸" : "▾"} ${group.header}`})
      this.strips[number].setv({top: group.top + 3, bottom: group.top + HEADER - 3})
    })
    const open = lanes.filter((lane) => lane.top !== null)
    const middles = new Map(open.map((lane) => [lane.top + lane.height / 2, lane]))
    const band_rows = groups.filter((group) => group.band_top !== null)
    const left = new Map([...middles].map(([at, lane]) => [at, lane.label]))
    for (const group of band_rows) left.set(group.band_top + BAND / 2, group.band_name)
    const right = new Map([...middles].filter(([, lane]) => lane.share).map(([at, lane]) => [at, lane.share]))
    for (const [axis, labels] of [[this.left_axis, left], [this.right_axis, right]]) {
      axis.ticker.ticks = [...labels.keys()]
      axis.major_label_overrides = labels
    }
    this.bands_source.data = this.columns(
      bands.filter((band) => groups[band.group].band_top !== null).map((band) => {
        const group = groups[band.group]
        return {
          left: band.left, right: band.right, top: group.band_top + 2, bottom: group.band_top + BAND - 2,
          foot: group.bottom, colour: band.shade ? "#E0E0E0" : "#F2F2F2", label: band.label,
        }
      }), ["left", "right", "top", "bottom", "foot", "colour", "label"])
    this.y_range.setv({start: y, end: 0})
    this.figure.frame_height = y
    this.height = y
    this.draw()
    this.detail()
    this.mark()
  }

  columns(rows, names) {
    return Object.fromEntries(names.map((name) => [name, rows.map((row) => row[name])]))
  }

  show_kinds(active) {
    this.hidden = new Set(this.kinds.filter((_, number) => !active.includes(number)))
    this.layout()
  }

  fold(number, folded) {
    this.data.groups[number].folded = folded
    this.layout()
  }

  lane_of(bar) {
    return this.data.lanes[this.data.blocks[this.block_of[bar]][0]]
  }

  style_of(bar) {
    return this.data.styles[this.data.blocks[this.block_of[bar]][1]]
  }

  // -- bars in view --------------------------------------------------------------------------------------------

  get view() {
    const {start, end} = this.x_range
    const width = this.figure.inner_width || 1000
    return {start, end, per_px: (end - start) / width}
  }

  // The first bar of a block that ends after `time`; bars of a block do not overlap.
  first(from, to, time) {
    const {right} = this.bars
    while (from < to) {
      const middle = (from + to) >> 1
      if (right[middle] > time) to = middle
      else from = middle + 1
    }
    return from
  }

  moved() {
    if (this.waiting) return
    this.waiting = true
    // Both ends of the range change in one go: draw once for both. And no more than once for what Bokeh draws.
    const soon = this.drawn_for_frame ? requestAnimationFrame : queueMicrotask
    soon(() => {
      this.waiting = false
      this.drawn_for_frame = true
      requestAnimationFrame(() => { this.drawn_for_frame = false })
      this.draw()
      clearTimeout(this.settling)
      this.settling = setTimeout(() => { this.detail(); this.mark() }, SETTLED_MS)
    })
  }

  draw() {
    const {start, end, per_px} = this.view
    const {left, right} = this.bars
    const {lanes} = this.data
    const narrow = NARROW * per_px
    for (const part of this.parts) part.count = 0
    this.joined.clear()
    this.blocks_in_view((lane_number, style, from, to) => {
      const lane = lanes[lane_number], plain = this.parts[this.plain[style]], hatched = this.parts[this.hatched[style]]
      const top = lane.top + 0.1 * lane.height, bottom = lane.top + 0.9 * lane.height
      // The bar that is being put together from those narrower than a pixel: where, of how many, and how long they are.
      let first = -1, begin = 0, reached = 0, small = false, lit = false, busy = 0, count = 0
      const put = () => {
        const wide = reached - begin
        let alpha = lit ? 1 : DIMMED
        // As dense as what it stands for: half busy is half as dark. But a line of a pixel or two is hard to see as it is.
        if (count > 1) {
          this.joined.set(first, count)
          if (wide >= 2 * per_px) alpha *= Math.max(LIGHTEST, Math.min(busy / wide, 1))
        }
        // A hatch takes long to draw, and is not seen in a narrow bar.
        const part = lit && wide >= HATCHED * per_px ? hatched : plain
        part.add(begin, Math.max(reached, begin + LEAST * per_px), top, bottom, alpha, first)
      }
      for (let bar = this.first(from, to, start); bar < to && left[bar] < end; bar++) {
        const from_x = left[bar], to_x = right[bar]
        const tiny = to_x - from_x < narrow
        const bright = this.bright(bar)
        if (first >= 0 && tiny && small && bright === lit && from_x - reached < narrow) {
          reached = Math.max(to_x, reached)
          busy += to_x - from_x
          count++
          continue
        }
        if (first >= 0) put()
        first = bar, begin = from_x, reached = to_x, small = tiny, lit = bright, busy = to_x - from_x, count = 1
      }
      if (first >= 0) put()
    })
    this.shown = this.parts.map((part) => part.columns())
    this.shown.forEach((columns, number) => {
      // Nothing before and nothing now: nothing to tell.
      if (columns.bar.length || this.sources[number].data.bar.length) this.sources[number].data = columns
    })
    for (const curve of this.curves) curve.drawn.data = this.curve_in_view(curve.whole.data)
  }

  // A step curve where it is in view, or of each of many parts of the view the highest.
  curve_in_view({at, held}) {
    const {start, end} = this.view
    const from = Math.max(this.later(at, start) - 1, 0), to = Math.min(this.later(at, end) + 1, at.length)
    const stride = Math.max(Math.ceil((to - from) / MOST_POINTS), 1)
    const drawn = {at: [], held: []}
    for (let point = from; point < to; point += stride) {
      let most = held[point]
      for (let other = point + 1; other < Math.min(point + stride, to); other++) most = Math.max(most, held[other])
      // Far outside the view, a point is as good as at its edge.
      drawn.at.push(Math.min(Math.max(at[point], start), end))
      drawn.held.push(most)
    }
    return drawn
  }

  // How many of the ascending times are not after `time`.
  later(at, time) {
    let from = 0, to = at.length
    while (from < to) {
      const middle = (from + to) >> 1
      if (at[middle] > time) to = middle
      else from = middle + 1
    }
    return from
  }

  bright(bar) {
    return this.matching === null || this.matching[bar] === 1
  }

  blocks_in_view(visit) {
    for (const [lane, style, from, to] of this.data.blocks)
      if (this.data.lanes[lane].top !== null) visit(lane, style, from, to)
  }

  // Outlines and texts, once the view has come to rest: what is wide enough to have them.
  detail() {
    const {start, end, per_px} = this.view
    const {left, right, critical} = this.bars
    const outlines = [], texts = []
    this.blocks_in_view((lane_number, style_number, from, to) => {
      const lane = this.data.lanes[lane_number], style = this.data.styles[style_number]
      for (let bar = this.first(from, to, start); bar < to && left[bar] < end; bar++) {
        const from_x = Math.max(left[bar], start), to_x = Math.min(right[bar], end)
        const px = (to_x - from_x) / per_px
        if (px < OUTLINED) continue
        if (outlines.length < MOST_OUTLINES || critical[bar])
          outlines.push({
            left: left[bar], right: right[bar], top: lane.top + 0.1 * lane.height, bottom: lane.top + 0.9 * lane.height,
            colour: critical[bar] ? "#000000" : "#00000040", width: critical[bar] ? 1.6 : 0.6,
          })
        if (px < 14 || texts.length >= MOST_TEXTS || !this.bright(bar)) continue
        const text = this.fitting(this.texts_of(bar), px)
        if (text) texts.push({
          x: (from_x + to_x) / 2, y: lane.top + lane.height / 2, text, colour: style.text,
          behind: style.hatch ? style.colour : "#00000000", size: lane.height < 20 ? "9px" : "11px",
        })
      }
    })
    // Critical ones last, so that no neighbour's line is over theirs.
    outlines.sort((one, other) => one.width - other.width)
    this.outlines_source.data = this.columns(outlines, ["left", "right", "top", "bottom", "colour", "width"])
    const bands = this.bands_source.data
    const cut = (number) => [Math.max(bands.left[number], start), Math.min(bands.right[number], end)]
    const of_group = new Map()
    for (let number = 0; number < bands.left.length; number++) {
      const [from_x, to_x] = cut(number)
      if (to_x > from_x) of_group.set(bands.top[number], [...(of_group.get(bands.top[number]) ?? []), number])
    }
    for (const numbers of of_group.values()) {
      const labels = this.labels_of(numbers.map((number) => bands.label[number]), numbers.map((number) => cut(number).map((x) => x / per_px)))
      numbers.forEach((number, at) => {
        if (labels[at]) texts.push({
          x: (cut(number)[0] + cut(number)[1]) / 2, y: (bands.top[number] + bands.bottom[number]) / 2, text: labels[at],
          colour: "#333333", behind: "#00000000", size: "11px",
        })
      })
    }
    this.texts_source.data = this.columns(texts, ["x", "y", "text", "colour", "behind", "size"])
  }

  labels_of(labels, edges) {
    return band_labels(labels, edges)
  }

  fitting(texts, px) {
    return texts.find((text) => text && text.length * CHARACTER + 6 <= px)
  }

  texts_of(bar) {
    const row = this.bars.row[bar]
    if (this.bars.kind[bar] === WAIT) return [this.data.causes[this.bars.cause[bar]]]
    if (row < 0) return []
    const index = this.tasks.index[row]
    return [this.name(row), this.data.operation_names[this.tasks.operation[row]], index >= 0 ? `${index}` : ""]
  }

  // -- the card ------------------------------------------------------------------------------------------------

  name(row) {
    const index = this.tasks.index[row]
    return this.data.task_names[this.tasks.task[row]] + (index >= 0 ? ` [${index}]` : "")
  }

  title(bar) {
    const row = this.bars.row[bar], kind = this.bars.kind[bar]
    if (this.bars.stands_for[bar] > 1) return `${this.bars.stands_for[bar]} bars merged into one`
    if (kind === WAIT) return this.data.causes[this.bars.cause[bar]]
    const name = row >= 0 ? this.name(row) : this.style_of(bar).label
    return kind === BUFFER ? `${this.lane_of(bar).label}: held for ${name}` : name
  }

  released(row) {
    const by = this.tasks.by[row]
    if (by === -1) return "nothing"
    const chip = this.tasks.by_chip[row], how = HOW[this.tasks.how[row]]
    const where = chip !== this.tasks.chip[row] ? ` on ${this.data.chips[chip]}` : ""
    return `${by === NOT_DRAWN ? "a task that is not on this page" : this.name(by)}${where} (${how})`
  }

  lines(bar) {
    const row = this.bars.row[bar], kind = this.bars.kind[bar], t = this.tasks
    const ps = (value) => Math.round(value * this.data.factor)
    const lines = [
      ["start", instant(this.bars.left[bar], this.data.unit)],
      ["duration", seconds(ps(this.bars.right[bar]) - ps(this.bars.left[bar]))],
    ]
    if (row < 0) return lines
    if (kind === WAIT) lines.push(["what waits", this.name(row)])
    const operation = this.data.operation_names[t.operation[row]]
    lines.unshift(["operation", operation + (t.layer[row] >= 0 ? `, layer ${t.layer[row]}` : "")])
    if (kind !== WAIT && t.bytes[row] > 0) lines.push(["bytes", amount(t.bytes[row], "B")])
    if (kind === TASK) {
      if (t.flops[row] > 0) lines.push(["FLOPs", amount(t.flops[row], "FLOPs")])
      if (t.share[row] > 0) lines.push(["share of peak", `${(100 * t.share[row]).toFixed(1)} %`])
    }
    lines.push(["waited for", this.released(row)])
    if (kind === TASK && this.bars.critical[bar]) lines.push(["", "on the critical path"])
    return lines
  }

  card_title(bar) {
    const count = this.joined.get(bar)
    return count ? `${count} bars too narrow to tell apart: zoom in` : this.title(bar)
  }

  card(bar) {
    return this.joined.has(bar) ? "" : this.lines(bar).map(([name, value]) => `${name}\t${value}`).join("\n")
  }

  // -- what it waited for --------------------------------------------------------------------------------------

  tap(x, y) {
    const number = this.data.groups.findIndex((group) => y >= group.top && y < group.top + HEADER)
    if (number >= 0) return this.fold(number, !this.data.groups[number].folded)
    const bar = this.bar_at(x, y)
    if (bar < 0) return this.clear()
    this.past = []
    this.choose(bar, this.bars.row[bar])
  }

  // The bar at a place, or the nearest within three pixels.
  bar_at(x, y) {
    const {per_px} = this.view
    let found = -1, nearest = 3 * per_px
    this.blocks_in_view((lane_number, _, from, to) => {
      const lane = this.data.lanes[lane_number]
      if (y < lane.top || y >= lane.top + lane.height) return
      const at = this.first(from, to, x)
      for (const bar of [at - 1, at]) {
        if (bar < from || bar >= to) continue
        const away = Math.max(this.bars.left[bar] - x, x - this.bars.right[bar], 0)
        if (away < nearest) [found, nearest] = [bar, away]
      }
    })
    return found
  }

  choose(bar, row) {
    this.chosen = bar
    this.chosen_row = row
    this.chain = []
    const seen = new Set([row])
    for (let at = row; at >= 0;) {
      at = this.tasks.by[at]
      if (at < 0 || seen.has(at)) break
      seen.add(at)
      this.chain.push(at)
    }
    this.mark()
    this.list()
  }

  clear() {
    this.past = []
    this.chosen = this.chosen_row = -1
    this.chain = []
    this.panel.hidden = true
    this.mark()
  }

  // The selected bar, and arrows from what was waited for to what waited, over lanes that are shown.
  mark() {
    const {start, end} = this.view
    const chosen = []
    if (this.chosen >= 0 && this.lane_of(this.chosen).top !== null) {
      const lane = this.lane_of(this.chosen)
      chosen.push({left: this.bars.left[this.chosen], right: this.bars.right[this.chosen], top: lane.top + 1, bottom: lane.top + lane.height - 1})
    }
    this.chosen_source.data = this.columns(chosen, ["left", "right", "top", "bottom"])
    const arrows = []
    let to = this.chosen
    for (const row of this.chain) {
      if (arrows.length >= MOST_ARROWS) break
      const bar = this.bar_of[row]
      if (bar < 0 || to < 0 || this.lane_of(bar).top === null) continue
      const middle = (one) => this.lane_of(one).top + this.lane_of(one).height / 2
      // Arrows out of view cost as much as those in view.
      if (this.bars.right[bar] <= end && this.lane_of(to).top !== null && this.bars.left[to] >= start)
        arrows.push({x0: this.bars.right[bar], y0: middle(bar), x1: this.bars.left[to], y1: middle(to)})
      to = bar
      if (this.bars.right[bar] < start) break
    }
    this.arrows_source.data = this.columns(arrows, ["x0", "y0", "x1", "y1"])
  }

  list() {
    const panel = this.panel
    panel.hidden = false
    panel.querySelector(".name").textContent = this.title(this.chosen)
    const facts = panel.querySelector(".facts")
    facts.replaceChildren(...this.lines(this.chosen).map(([name, value]) => {
      const line = document.createElement("tr")
      for (const text of [name, value]) line.appendChild(document.createElement("td")).textContent = text
      return line
    }))
    panel.querySelector(".walk").disabled = !this.chain.length
    panel.querySelector(".back").disabled = !this.past.length
    panel.querySelector(".count").textContent = this.chain.length
      ? `It waited for, one after the other back to the start (${this.chain.length.toLocaleString("en")}):`
      : "It waited for nothing."
    let waiter = this.chosen_row
    const steps = this.chain.slice(0, MOST_STEPS).map((row) => {
      const step = document.createElement("li")
      const link = step.appendChild(document.createElement("button"))
      const how = HOW[this.tasks.how[waiter]], chip = this.tasks.by_chip[waiter]
      const where = chip !== this.tasks.chip[waiter] ? `, ${this.data.chips[chip]}` : ""
      link.textContent = this.name(row)
      link.onclick = () => this.go(row)
      step.append(` at ${instant(this.tasks.start[row], this.data.unit)}, ${how}${where}`)
      waiter = row
      return step
    })
    if (this.chain.length > MOST_STEPS) {
      const rest = document.createElement("li")
      rest.className = "rest"
      rest.textContent = `… and ${(this.chain.length - MOST_STEPS).toLocaleString("en")} before them`
      steps.push(rest)
    }
    const last = this.chain.length ? this.chain[this.chain.length - 1] : this.chosen_row
    if (last >= 0 && this.tasks.by[last] === NOT_DRAWN) {
      const beyond = document.createElement("li")
      beyond.className = "rest"
      beyond.textContent = `${this.name(last)} waited for ${this.released(last)}`
      steps.push(beyond)
    }
    panel.querySelector("ol").replaceChildren(...steps)
  }

  walk() {
    if (this.chain.length) this.go(this.chain[0])
  }

  go(row) {
    this.past.push([this.chosen, this.chosen_row])
    const bar = this.bar_of[row]
    if (bar >= 0) {
      this.reveal(bar)
      this.choose(bar, row)
    } else {
      // A task without a bar (it takes no time, or is merged): walk on from it, at the place of what waited.
      this.choose(this.chosen, row)
      this.panel.querySelector(".name").textContent = `${this.name(row)} (has no bar)`
    }
  }

  back() {
    const before = this.past.pop()
    if (!before) return
    if (before[0] >= 0) this.reveal(before[0])
    this.choose(...before)
  }

  // Bring a bar into view: unfold its lane, and move or zoom the axis, and the page.
  reveal(bar) {
    const lane = this.lane_of(bar)
    if (lane.top === null) {
      this.data.groups[lane.group].folded = false
      if (this.hidden.has(lane.kind)) this.kind_buttons.active = this.kinds.map((_, n) => n).filter((n) => !this.hidden.has(this.kinds[n]) || this.kinds[n] === lane.kind)
      this.layout()
    }
    const {start, end, per_px} = this.view
    const left = this.bars.left[bar], right = this.bars.right[bar]
    const width = (end - start) / per_px, px = (right - left) / per_px
    let span = end - start
    if (px < 8) span = (right - left) * width / 40
    else if (px > 0.9 * width) span = Math.min((right - left) * 1.5, this.data.end)
    if (span !== end - start || left < start || right > end) {
      const middle = (left + right) / 2
      const from = Math.min(Math.max(middle - span / 2, 0), Math.max(this.data.end - span, 0))
      this.x_range.setv({start: from, end: from + span})
    }
    const frame = document.getElementById("plots").getBoundingClientRect()
    const at = frame.top + this.above + lane.top
    if (at < 140 || at > window.innerHeight - 60) window.scrollBy({top: at - window.innerHeight / 2})
  }

  // -- search --------------------------------------------------------------------------------------------------

  text_of(row) {
    const t = this.tasks
    const layer = t.layer[row] >= 0 ? ` layer${t.layer[row]}` : ""
    return `${this.data.task_names[t.task[row]]} ${this.data.operation_names[t.operation[row]]}${layer} `.toLowerCase()
  }

  // Every word must be in a task's name, its operation's, or be "layer3".
  search(text) {
    const words = text.toLowerCase().replace(/\blayer\s+(\d+)/g, "layer$1 ").split(/\s+/).filter((word) => word)
      .map((word) => /^layer\d+$/.test(word) ? `${word} ` : word)
    this.match = -1
    this.matches = []
    this.matching = null
    if (words.length) {
      const {kind, row, left} = this.bars
      const known = new Map()
      this.matching = new Uint8Array(left.length)
      for (let bar = 0; bar < left.length; bar++) {
        if (kind[bar] === WAIT || row[bar] < 0) continue
        const t = this.tasks, at = row[bar]
        const key = `${t.task[at]} ${t.operation[at]} ${t.layer[at]}`
        if (!known.has(key)) {
          const whole = this.text_of(at)
          known.set(key, words.every((word) => whole.includes(word)))
        }
        if (!known.get(key)) continue
        this.matching[bar] = 1
        if (kind[bar] === TASK) this.matches.push(bar)
      }
      this.matches.sort((one, other) => left[one] - left[other] || one - other)
    }
    this.count()
    this.draw()
    this.detail()
  }

  count() {
    const all = this.matches.length.toLocaleString("en")
    const tasks = this.matches.length === 1 ? "task" : "tasks"
    this.count_text.text = this.matching === null ? "" : this.match < 0 ? `${all} ${tasks}` : `${(this.match + 1).toLocaleString("en")} of ${all}`
  }

  next(step) {
    if (!this.matches.length) return
    const count = this.matches.length
    // The first step goes to the first match in view.
    if (this.match < 0) {
      const {start} = this.view
      const seen = this.matches.findIndex((bar) => this.bars.right[bar] > start)
      this.match = step > 0 ? Math.max(seen, 0) : (seen > 0 ? seen - 1 : count - 1)
    } else this.match = (this.match + step + count) % count
    const bar = this.matches[this.match]
    this.count()
    this.past = []
    this.reveal(bar)
    this.choose(bar, this.bars.row[bar])
  }
}
