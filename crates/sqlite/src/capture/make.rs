//! Making one capture: opening, copying, proving, writing down, and putting it in place.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

use super::copy::{self, Log};
use super::find::{Ghost, Set, name};
use super::note::{ALONE, id, manifest};
use super::open::{Closed, Open, open};
use super::pin::Pin;
use super::place::{Place, Staged};
use super::{Capture, CapturedFile, Origin, TakeError, check};
use crate::captures::{self, IMAGE, LOG, MANIFEST};
use crate::error::{Error, Result};
use crate::family::{Family, Generation, Status};
use crate::header::MainHeader;
use crate::holders::{HeldFile, Holder};
use crate::image::{self, Sink as _};
use crate::wal::{ReadAt as _, word};

/// The copy of the shared index.
const INDEX: &str = "shm.captured";

/// What manifest, directories and the flushing of them take.
const MARGIN: u64 = 1 << 20;

/// An index that is longer belongs to a log of more than half a gigabyte and is left out; it can be made again.
const LONGEST_INDEX: u64 = 1 << 20;

/// Is told how many bytes of how many were read.
pub(super) type Watch<'a> = &'a dyn Fn(u64, u64);

/// The files of a retired generation, open for reading. Whatever becomes of their process, they can be read to the end.
pub(super) struct Files {
    pub(super) holder: Holder,
    pub(super) mains: Vec<Open>,
    pub(super) log: Option<Open>,
    pub(super) index: Option<(Status, HeldFile)>,
    /// Closed as soon as it was copied: whoever has an index open and none of a reader's locks looks as if it had lost them.
    pub(super) index_file: Option<File>,
}

impl Files {
    /// Of whichever of the processes lets them be opened.
    fn open(ghost: &Ghost, denied: &dyn Fn(&Holder) -> TakeError) -> Result<Files, TakeError> {
        let mut why = None;
        for (holder, set) in ghost.holders.iter().zip(&ghost.sets) {
            match Files::of(holder, set) {
                Ok(files) => return Ok(files),
                Err(Closed::NotAllowed) => why = Some(denied(holder)),
                Err(Closed::Gone) => {
                    why = why.or_else(|| Some(TakeError::Ended { who: name(holder) }));
                }
                Err(Closed::Failed(e)) => {
                    let path = format!("/proc/{}", holder.pid.unwrap_or(0));
                    why = Some(Error::io("read the files of", Path::new(&path), e).into());
                }
            }
        }
        Err(why.unwrap_or_else(|| TakeError::Nothing { who: "nobody".into() }))
    }

    fn of(holder: &Holder, set: &Set) -> Result<Files, Closed> {
        let log = set.log.as_ref().map(|log| open(holder, log)).transpose()?;
        let mains: Vec<Result<Open, Closed>> = set.mains.iter().map(|main| open(holder, main)).collect();
        if log.is_none() && mains.iter().all(Result::is_err) {
            return Err(mains.into_iter().find_map(Result::err).unwrap_or(Closed::Gone));
        }
        let mains = mains.into_iter().flatten().collect();
        let index = set.index.as_ref().and_then(|index| open(holder, index).ok());
        let (index, index_file) = index.map(|o| ((o.status, o.held), o.file)).unzip();
        Ok(Files { holder: holder.clone(), mains, log, index, index_file })
    }

    fn model(&self) -> Option<&Open> {
        self.log.as_ref().or(self.mains.first())
    }
}

/// What a copy turned out to be.
pub(super) struct Made {
    pub(super) log: Log,
    pub(super) image: Option<Imaged>,
    /// Why there is no image.
    pub(super) detail: String,
    pub(super) main: Option<usize>,
    pub(super) index: Option<CapturedFile>,
}

pub(super) struct Imaged {
    pub(super) page_size: u32,
    pub(super) pages: u64,
    pub(super) bytes: u64,
    pub(super) blake3: String,
    /// What SQLite finds wrong with it.
    pub(super) unsound: String,
    pub(super) writer: Option<String>,
}

/// Captures a generation; true if it was captured before as it is.
pub(super) fn make(
    family: &Family,
    ghost: &Ghost,
    denied: &dyn Fn(&Holder) -> TakeError,
    watch: Watch<'_>,
) -> Result<(Capture, bool), TakeError> {
    let mut files = Files::open(ghost, denied)?;
    let Some(model) = files.model() else {
        return Err(TakeError::Nothing { who: name(&files.holder) });
    };
    let place = Place::open(family, model.file.as_fd())?;
    place.clear();
    let done = in_place(family, ghost, &mut files, &place, watch);
    if done.is_err() {
        place.abandon();
    }
    done
}

fn in_place(
    family: &Family,
    ghost: &Ghost,
    files: &mut Files,
    place: &Place,
    watch: Watch<'_>,
) -> Result<(Capture, bool), TakeError> {
    let staged = place.stage()?;
    let at_path = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    let made = copies(files, at_path, place, &staged, watch)?;
    files.index_file = None;
    let files = &*files;
    let generation = Generation {
        main: made.main.and_then(|n| files.mains.get(n)).map(|m| m.status.identity),
        wal: files.log.as_ref().map(|l| l.status.identity),
        shm: files.index.as_ref().map(|(status, _)| status.identity),
    };
    // An empty file there is no database either.
    let id = id(generation.wal, &made, captures::main_is_missing(family)?);
    let plain = id.strip_suffix(ALONE).unwrap_or(&id);
    if let Some(before) = [id.as_str(), plain].into_iter().find(|id| place.has(id))
        && let Some(capture) = super::read(&place.of(before))?
    {
        return Ok((capture, true));
    }
    let copied = seal(files, &staged, &made)?;
    let manifest = manifest(family, ghost, files, &made, generation, at_path, copied, &id)?;
    captures::write_text(&staged.path(), MANIFEST, &manifest)?;
    let new = staged.publish(&id)?;
    Ok((
        Capture { place: place.of(&id), id, origin: Origin::Statehouse, manifest, side: Some(family.side_directory()) },
        !new,
    ))
}

/// Copies what there is room for.
fn copies(
    files: &mut Files,
    at_path: Generation,
    place: &Place,
    staged: &Staged<'_>,
    watch: Watch<'_>,
) -> Result<Made, TakeError> {
    let free = place.free()?;
    let log_bytes = files.log.as_ref().map_or(0, |l| l.status.size);
    let main_bytes = files.mains.iter().map(|m| m.status.size).max().unwrap_or(0);
    let index_bytes = files.index.as_ref().map_or(0, |(status, _)| status.size).min(LONGEST_INDEX);
    let alone = log_bytes + index_bytes + MARGIN;
    // Each page of the log is in the image once at most.
    let whole = alone + main_bytes + log_bytes;
    let has_log = files.log.is_some();
    let no_room = |needed: u64| TakeError::NoRoom {
        numbers: format!(
            "{free} bytes are free beside the database; the log has {log_bytes} bytes and the main file {main_bytes}, and \
             {needed} bytes are needed for a copy of {}",
            if has_log { "the log alone" } else { "the main file" }
        ),
    };
    if free < alone || files.log.is_none() && free < whole {
        return Err(no_room(if files.log.is_some() { alone } else { whole }));
    }
    let detail;
    if free < whole {
        detail = format!("there was no room for an image: {free} bytes were free and it takes up to {whole}");
    } else if files.mains.is_empty() {
        detail = "the process had no main file open".into();
    } else {
        match with_image(files, at_path, staged, main_bytes + log_bytes, watch) {
            Ok(Some(made)) => return Ok(made),
            Ok(None) => {
                detail =
                    "main file and log never stood still together for ten seconds, so there is the log alone".into();
            }
            // Others fill the disk as well; the log has the rows.
            Err(Error::Full) if files.log.is_some() => detail = "the disk became full while the image was made".into(),
            Err(Error::Full) => return Err(no_room(whole)),
            Err(e) => return Err(e.into()),
        }
        let _ = std::fs::remove_file(staged.path().join(IMAGE));
    }
    let Some(log) = &files.log else {
        return Err(Error::Damaged { detail }.into());
    };
    let mut to = captures::create(&staged.path().join(LOG))?;
    let told = |bytes| watch(bytes, log_bytes);
    let io = |e| Error::io("copy to", &staged.path().join(LOG), e);
    let copied = copy::both(None, Some((&log.file, &mut to)), &told).and_then(|stable| match stable {
        Some(copied) => Ok(copied),
        // Every part of it proves itself; it may only be less than there was.
        None => copy::copy_log(&log.file, &mut to, &told),
    });
    match copied {
        Ok(log) => Ok(Made { log, image: None, detail, main: None, index: copy_index(files, staged) }),
        Err(e) => match io(e) {
            Error::Full => Err(no_room(alone)),
            e => Err(e.into()),
        },
    }
}

/// Copies of the log and of each main file that it may belong to, until one fits.
fn with_image(
    files: &mut Files,
    at_path: Generation,
    staged: &Staged<'_>,
    total: u64,
    watch: Watch<'_>,
) -> Result<Option<Made>> {
    let path = staged.path().join(IMAGE);
    let mut index = None;
    let mut first: Option<Made> = None;
    let candidates = (0..files.mains.len()).chain(if files.mains.len() > 1 { Some(0) } else { None });
    for (n, last) in candidates.zip((1..).map(|n| n > files.mains.len())) {
        let Some(main) = files.mains.get(n) else { continue };
        let mut image = captures::create(&path)?;
        let io = |e| Error::io("copy to", &path, e);
        image.set_len(0).map_err(io)?;
        let mut to = files.log.as_ref().map(|_| captures::create(&staged.path().join(LOG))).transpose()?;
        let log = files.log.as_ref().zip(to.as_mut()).map(|(log, to)| (&log.file, to));
        let named = files.index.as_ref().is_some_and(|(status, _)| at_path.shm == Some(status.identity));
        let pin = match &files.index_file {
            Some(index) => Some(Pin::take(&main.file, index, named)),
            None if files.log.is_none() => Pin::without_log(&main.file),
            None => None,
        };
        let amid = files.log.is_none() && pin.is_none();
        let copied = copy::both(Some((&main.file, &mut image)), log, &|b| watch(b, total)).map_err(io)?;
        let last = last || files.mains.len() == 1;
        if pin.is_some() && index.is_none() {
            index = copy_index(files, staged);
        }
        drop(pin);
        if last {
            files.index_file = None;
        }
        let Some(log) = copied else { return Ok(None) };
        let detail = String::new();
        let mut made = match overlay(&log, to.as_ref(), &mut image, &path)? {
            Ok(imaged) => Made { log, image: Some(imaged), detail, main: Some(n), index: index.clone() },
            Err(detail) => Made { log, image: None, detail, main: None, index: index.clone() },
        };
        if let Some(image) = made.image.as_mut().filter(|_| amid) {
            let why = "its process was in the middle of a transaction all the time, and may have written half of it";
            image.unsound = format!("{why}; {}", image.unsound).trim_end_matches("; ").to_owned();
        }
        let sound = made.image.as_ref().is_some_and(|i| i.unsound.is_empty());
        if sound || last {
            first = Some(made);
            break;
        }
        first.get_or_insert(made);
    }
    let Some(made) = first else { return Ok(None) };
    if made.image.is_none() {
        let _ = std::fs::remove_file(&path);
        // Without a log there is nothing left.
        if files.log.is_none() {
            return Err(Error::Damaged { detail: made.detail });
        }
    }
    Ok(Some(made))
}

/// Lays the log over the copy of the main file. The inner error says why that is no database.
fn overlay(log: &Log, from: Option<&File>, image: &mut File, path: &Path) -> Result<Result<Imaged, String>> {
    let io = |e| Error::io("write", path, e);
    let length = image.metadata().map_err(io)?.len();
    let header = |image: &File| MainHeader::read(image).map_err(io);
    let page_size = match (log.header.filter(|_| log.size > 0), header(image)?) {
        (Some(header), _) => header.page_size,
        (None, Some(header)) => header.page_size,
        (None, None) => return Ok(Err("neither the main file nor its log is an SQLite database".into())),
    };
    let step = u64::from(page_size);
    if log.size > 0 {
        let highest = log.pages.keys().next_back().map_or(0, |p| u64::from(*p)).max(length / step);
        if image::check_size(log.size, highest).is_err() {
            return Ok(Err(format!("the log claims {} pages and holds nothing like it", log.size)));
        }
        let mut page = vec![0; page_size as usize];
        for (number, at) in &log.pages {
            let read = from.map_or(Ok(false), |from| from.fill_at(&mut page, *at)).map_err(io)?;
            if !read {
                return Err(io(std::io::ErrorKind::UnexpectedEof.into()));
            }
            image.write_at(&page, u64::from(*number - 1) * step).map_err(io)?;
        }
        image.set_len(u64::from(log.size) * step).map_err(io)?;
    }
    let mut head = [0; 100];
    if !image.fill_at(&mut head, 0).map_err(io)? || MainHeader::parse(&head).is_none() {
        return Ok(Err("its first page is not that of an SQLite database".into()));
    }
    // A file by itself from now on, without a log.
    image.write_at(&[1, 1], 18).map_err(io)?;
    let writer = word(&head, 96);
    let writer = format!("{}.{}.{}", writer / 1_000_000, writer / 1000 % 1000, writer % 1000);
    let bytes = image.metadata().map_err(io)?.len();
    let flushed = std::thread::scope(|scope| {
        // The disk writes while the processor reads.
        let flush = scope.spawn(|| image.sync_all());
        let checked = copy::hash(image).map(|hash| (hash, check::unsound(path)));
        let flushed = flush.join().unwrap_or_else(|_| Err(std::io::Error::other("the flush did not end")));
        flushed.and(checked)
    });
    let (blake3, unsound) = flushed.map_err(io)?;
    let writer = Some(writer).filter(|w| !w.starts_with("0."));
    Ok(Ok(Imaged { page_size, pages: bytes / step, bytes, blake3, unsound, writer }))
}

/// Flushes what is not flushed yet.
fn seal(files: &Files, staged: &Staged<'_>, made: &Made) -> Result<Vec<CapturedFile>> {
    let mut copied = Vec::new();
    if let Some(image) = &made.image {
        copied.push(CapturedFile { name: IMAGE.into(), bytes: image.bytes, blake3: image.blake3.clone() });
    }
    if files.log.is_some() {
        let path = staged.path().join(LOG);
        captures::create(&path)?.sync_all().map_err(|e| Error::io("write", &path, e))?;
        copied.push(CapturedFile { name: LOG.into(), bytes: made.log.bytes, blake3: made.log.blake3.clone() });
    }
    copied.extend(made.index.clone());
    Ok(copied)
}

/// Copies the index. It is evidence, no more: the log is read without it, so what keeps it from being copied is no failure.
fn copy_index(files: &Files, staged: &Staged<'_>) -> Option<CapturedFile> {
    let index = files.index_file.as_ref()?;
    let path = staged.path().join(INDEX);
    if files.index.as_ref().is_none_or(|(status, _)| status.size > LONGEST_INDEX) {
        return None;
    }
    let copied = captures::copy_file(index, &path, &path).ok().and_then(|copy| {
        let bytes = copy.metadata().ok()?.len();
        Some(CapturedFile { name: INDEX.into(), bytes, blake3: copy::hash(&copy).ok()? })
    });
    if copied.is_none() {
        let _ = std::fs::remove_file(&path);
    }
    copied
}
